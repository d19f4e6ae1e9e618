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

// Table prints all columns of rows, which are structs, under their JSON names. Numbers stand at the
// right of their column. A column of milliseconds (..._ms) is shown as Age shows times. Lines are as
// long as the rows need: List keeps to the width of a screen.
func Table[T any](w io.Writer, rows []T) error {
	columns := columnsOf(reflect.TypeFor[T]())
	g := newGrid(len(columns), len(rows))
	for n, column := range columns {
		head, isTime := strings.CutSuffix(column, "_ms")
		g.lines[0][n] = head
		for i := range rows {
			text := cell(field(reflect.ValueOf(rows[i]), column))
			number, err := strconv.ParseFloat(text, 64)
			if isTime && err == nil {
				text = Age(number / 1000)
			}
			g.set(i, n, text, err == nil || text == "")
		}
	}
	return g.print(w)
}

// grid is a table as text: the line of heads, and a line for each row.
type grid struct {
	lines [][]string
	right []bool // of each column: whether its cells stand at the right
}

// newGrid returns an empty table.
func newGrid(columns, rows int) *grid {
	g := &grid{lines: make([][]string, rows+1), right: make([]bool, columns)}
	for i := range g.lines {
		g.lines[i] = make([]string, columns)
	}
	for n := range g.right {
		g.right[n] = true
	}
	return g
}

// set writes the cell of a row. A column stands at the right only if all its cells are numbers or
// empty, because a text at the right is hard to read.
func (g *grid) set(row, column int, text string, isNumber bool) {
	g.lines[row+1][column] = text
	g.right[column] = g.right[column] && isNumber
}

// width returns how many columns of the screen a column of the table needs.
func (g *grid) width(column int) int {
	widest := 0
	for _, cells := range g.lines {
		widest = max(widest, utf8.RuneCountInString(cells[column]))
	}
	return widest
}

// print writes the table, with spaces between the columns and none at the end of a line.
func (g *grid) print(w io.Writer) error {
	widths := make([]int, len(g.right))
	for n := range widths {
		widths[n] = g.width(n)
	}
	for _, cells := range g.lines {
		var line strings.Builder
		for n, text := range cells {
			pad := strings.Repeat(" ", widths[n]-utf8.RuneCountInString(text))
			if g.right[n] {
				line.WriteString(pad + text + gap)
			} else {
				line.WriteString(text + pad + gap)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// gap stands between two columns.
const gap = "  "

// Record prints one row, a struct, with one line for each column.
func Record[T any](w io.Writer, row T) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	v := reflect.ValueOf(row)
	for _, column := range columnsOf(v.Type()) {
		fmt.Fprintf(table, "%s\t%s\n", column, cell(field(v, column)))
	}
	return table.Flush()
}

// JSON prints rows or a row as JSON, indented. It leaves <, > and & as they are, because a terminal
// is no web page.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// nameOf returns the JSON name of a field.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// columnsOf returns the JSON names of a row's fields, in their order, with those of embedded rows.
func columnsOf(t reflect.Type) []string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if !f.Anonymous {
			names = append(names, nameOf(f))
		}
	}
	return names
}

// field returns the field with a JSON name, of a row or of a row embedded in it.
func field(v reflect.Value, name string) reflect.Value {
	return v.FieldByIndex(fieldOf(v.Type(), name).Index)
}

// fieldOf finds a field by its JSON name. It panics if there is none, which is a mistake in a list's
// columns: the test of each list would show it.
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

// plain returns a value as text, whatever characters it has.
func plain(v reflect.Value) string {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
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
	case []byte: // JSON: no row has bytes of another kind
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
