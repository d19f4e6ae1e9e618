package cmdline

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Painter colours words if it is true. If it is false, it returns words as they are.
type Painter bool

// Paints returns a Painter for words that are written to w. It colours them if w is a terminal that
// shows colours, and NO_COLOR is not set (no-color.org).
func Paints(w io.Writer) Painter {
	file, ok := w.(*os.File)
	return Painter(ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())))
}

// Red is for errors.
func (p Painter) Red(s string) string { return p.paint("31", s) }

// Green is for success.
func (p Painter) Green(s string) string { return p.paint("32", s) }

// Yellow is for warnings.
func (p Painter) Yellow(s string) string { return p.paint("33", s) }

// paint returns s between the ANSI sequences for a colour, by its number, and for no colour.
func (p Painter) paint(colour, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}
