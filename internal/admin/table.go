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

// Table prints rows, a slice of structs, under the JSON names of the columns that are asked for; without any, all of them. Numbers stand at
// the right of their column. A column of milliseconds (..._ms) is shown as Age shows times.
func Table[T any](w io.Writer, rows []T, columns ...string) error {
	if len(columns) == 0 {
		columns = columnsOf(reflect.TypeFor[T]())
	}
	lines := make([][]string, len(rows)+1)
	widths, right := make([]int, len(columns)), make([]bool, len(columns))
	for n, column := range columns {
		head, isTime := strings.CutSuffix(column, "_ms")
		lines[0] = append(lines[0], head)
		right[n] = true
		for i := range rows {
			text := cell(field(reflect.ValueOf(rows[i]), column))
			number, err := strconv.ParseFloat(text, 64)
			if isTime && err == nil {
				text = Age(number / 1000)
			}
			right[n] = right[n] && (err == nil || text == "")
			lines[i+1] = append(lines[i+1], text)
		}
		for _, cells := range lines {
			widths[n] = max(widths[n], utf8.RuneCountInString(cells[n]))
		}
	}
	for _, cells := range lines {
		var line strings.Builder
		for n, text := range cells {
			pad := strings.Repeat(" ", widths[n]-utf8.RuneCountInString(text))
			if right[n] {
				line.WriteString(pad + text + "  ")
			} else {
				line.WriteString(text + pad + "  ")
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Age formats a time in at most nine columns, in its two largest units; "-" if it is zero.
func Age(seconds float64) string {
	switch n := int64(seconds); {
	case seconds <= 0:
		return "-"
	case n < 60:
		return strconv.FormatFloat(seconds, 'f', 1, 64) + "s"
	case n < 3600:
		return fmt.Sprintf("%dm%02ds", n/60, n%60)
	case n < 86400:
		return fmt.Sprintf("%dh%02dm", n/3600, n/60%60)
	default:
		return fmt.Sprintf("%dd%02dh", n/86400, n/3600%24)
	}
}

// Record prints one row, a struct, with one line for each column.
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

// field returns the field with a JSON name, of a row or of a row embedded in it.
func field(v reflect.Value, name string) reflect.Value {
	return v.FieldByIndex(fieldOf(v.Type(), name).Index)
}

func fieldOf(t reflect.Type, name string) reflect.StructField {
	for _, f := range reflect.VisibleFields(t) {
		if !f.Anonymous && nameOf(f) == name {
			return f
		}
	}
	panic(fmt.Sprintf("%s has no field %s", t, name))
}

// cell returns a value as text for a person, "" if there is none.
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
