package admin

import (
	"cmp"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// screen is the width that lists keep to: a terminal has 80 columns unless somebody enlarges it, and
// a table whose lines wrap cannot be read.
const screen = 80

// leastSpare is how many columns of the screen a spare column needs at least to be shown.
const leastSpare = 10

// Column is a column of a list.
type Column struct {
	Field string // the JSON name of the row's field
	Head  string // what stands above the column; empty: Field
	// Cut is the least width that longer cells may be cut to, so that the lines fit; 0: they are
	// never cut.
	Cut     int
	Percent bool // the field is a part of 1, shown as a percentage
	Exact   bool // all digits of a number are shown, because it is a name, such as the number of a row
	// Spare columns get what the others leave of the screen. They are left out if that is too little,
	// or if all their cells are empty.
	Spare bool
}

// List prints the columns of rows that an operator needs most, so that lines have at most 80 columns
// if the widths of the columns that are never cut allow it. It shows times as Age does: how long
// before now they were, or "in 5m00s" how long after. Large numbers are shown as Count does.
func List[T any](w io.Writer, rows []T, now time.Time, columns ...Column) error {
	g := newGrid(len(columns), len(rows))
	for n, column := range columns {
		g.lines[0][n] = cmp.Or(column.Head, column.Field)
		for i := range rows {
			text, isNumber := column.show(field(reflect.ValueOf(rows[i]), column.Field), now)
			g.set(i, n, text, isNumber)
		}
	}
	g.fit(columns)
	return g.print(w)
}

// show returns a value as text, and whether it is a number, a time or nothing.
func (c *Column) show(v reflect.Value, now time.Time) (text string, isNumber bool) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch value := v.Interface().(type) {
	case time.Time:
		return when(value, now), true
	case *time.Time: // nil
		return "-", true
	case string:
		number, err := strconv.ParseFloat(value, 64)
		if c.Percent && err == nil {
			return Percent(number), true
		}
		return cell(v), value == "" || err == nil
	}
	switch {
	case c.Percent && v.CanFloat():
		return Percent(v.Float()), true
	case !v.CanInt():
		text = cell(v)
		_, err := strconv.ParseFloat(text, 64)
		return text, text == "" || err == nil
	case strings.HasSuffix(c.Field, "_ms"):
		return Age(float64(v.Int()) / 1000), true
	case c.Exact:
		return strconv.FormatInt(v.Int(), 10), true
	}
	return Count(v.Int()), true
}

// when returns how long before now a time was, or how long after now it will be; "-" for no time.
func when(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	if at.After(now) {
		return "in " + Age(at.Sub(now).Seconds())
	}
	// The two clocks may differ by some milliseconds, and "-" would say that there is no time.
	return Age(max(now.Sub(at).Seconds(), 0.001))
}

// fit cuts cells until the lines fit onto the screen. The widest column gives way first. Spare
// columns get the rest of the screen, the first of them first.
func (g *grid) fit(columns []Column) {
	widths, total := make([]int, len(columns)), -len(gap)
	for n := range columns {
		if !columns[n].Spare {
			widths[n] = g.width(n)
			total += widths[n] + len(gap)
		}
	}
	for ; total > screen; total-- {
		widest := -1
		for n := range columns {
			floor := max(columns[n].Cut, len(g.lines[0][n]))
			if columns[n].Cut > 0 && widths[n] > floor && (widest < 0 || widths[n] > widths[widest]) {
				widest = n
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for n := range columns {
		if columns[n].Spare && !g.empty(n) {
			least := max(leastSpare, len(g.lines[0][n]))
			if widths[n] = min(g.width(n), screen-total-len(gap)); widths[n] < min(least, g.width(n)) {
				widths[n] = 0
				continue
			}
			total += widths[n] + len(gap)
		}
	}
	g.cut(widths)
}

// empty says whether no row has anything in a column.
func (g *grid) empty(column int) bool {
	return !slices.ContainsFunc(g.lines[1:], func(cells []string) bool { return cells[column] != "" && cells[column] != "-" })
}

// cut cuts each column to its width, and removes the columns whose width is 0.
func (g *grid) cut(widths []int) {
	right := g.right
	g.right = nil
	for n, width := range widths {
		if width > 0 {
			g.right = append(g.right, right[n])
		}
	}
	for i, cells := range g.lines {
		var kept []string
		for n, width := range widths {
			if width > 0 {
				kept = append(kept, Clip(cells[n], width))
			}
		}
		g.lines[i] = kept
	}
}
