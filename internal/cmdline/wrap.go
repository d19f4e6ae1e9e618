package cmdline

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width returns the width of the terminal that w is, in columns; 0 if w is not a terminal. A
// terminal that does not tell its width has 80 columns.
func Width(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
		return columns
	}
	return 80
}

// Wrap breaks the lines of text between words, so that they have at most width columns. Lines after
// a break begin with indent. A word that is longer than a line keeps a line of its own, so that it
// can be copied.
func Wrap(text, indent string, width int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line, end := strings.TrimSuffix(line, "\n"), strings.HasSuffix(line, "\n")
		body := strings.TrimLeft(line, " ")
		column := len(line) - len(body)
		out.WriteString(line[:column])
		for i, word := range strings.Fields(body) {
			length := utf8.RuneCountInString(word)
			switch {
			case i == 0:
			case column+1+length > width:
				out.WriteString("\n" + indent)
				column = len(indent)
			default:
				out.WriteString(" ")
				column++
			}
			out.WriteString(word)
			column += length
		}
		if end {
			out.WriteString("\n")
		}
	}
	return out.String()
}
