package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// Table prints rows, a slice of structs, under the JSON names of the columns that are asked for; without any, all of them.
func Table[T any](w io.Writer, rows []T, columns ...string) error {
	if len(columns) == 0 {
		columns = columnsOf(reflect.TypeFor[T]())
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(columns, "\t"))
	for i := range rows {
		v := reflect.ValueOf(rows[i])
		cells := make([]string, len(columns))
		for n, column := range columns {
			cells[n] = cell(field(v, column))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

// Record prints one row, a struct, as a line for each column.
func Record[T any](w io.Writer, row T) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	v := reflect.ValueOf(row)
	for _, column := range columnsOf(v.Type()) {
		fmt.Fprintf(table, "%s\t%s\n", column, cell(field(v, column)))
	}
	return table.Flush()
}

// JSON prints what the tables show, for programs.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func columnsOf(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			names = append(names, columnsOf(f.Type)...)
		} else {
			names = append(names, nameOf(f))
		}
	}
	return names
}

// field is the field of a row, or of a row embedded in it, that has a JSON name.
func field(v reflect.Value, name string) reflect.Value {
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !f.Anonymous && nameOf(f) == name {
			return v.FieldByIndex(f.Index)
		}
	}
	panic(fmt.Sprintf("%s has no field %s", v.Type(), name))
}

// cell is a value as a person reads it; empty if there is none.
func cell(v reflect.Value) string {
	text := plain(v)
	// Workers name themselves, and their escape sequences would steer the operator's terminal.
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(text) {
		return strconv.Quote(text)
	}
	return text
}

func plain(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch value := v.Interface().(type) {
	case time.Time:
		if value.IsZero() {
			return ""
		}
		return value.UTC().Format(time.RFC3339)
	case json.RawMessage:
		return string(value)
	case []string:
		return strings.Join(value, ",")
	case float64:
		return fmt.Sprintf("%.4g", value)
	default:
		if v.Kind() == reflect.Slice {
			return fmt.Sprint(v.Len())
		}
		return fmt.Sprint(value)
	}
}
