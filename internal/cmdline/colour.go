package cmdline

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Painter colours words if it is true.
type Painter bool

// Paints says whether words that are written to w are coloured: w is a terminal that knows colours, and NO_COLOR is not set (no-color.org).
func Paints(w io.Writer) Painter {
	file, ok := w.(*os.File)
	return Painter(ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())))
}

func (p Painter) Red(s string) string    { return p.paint("31", s) }
func (p Painter) Green(s string) string  { return p.paint("32", s) }
func (p Painter) Yellow(s string) string { return p.paint("33", s) }

func (p Painter) paint(colour, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}
