package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// painter colours words where a person looks: on a terminal, unless NO_COLOR is set (no-color.org) or the terminal cannot.
type painter bool

func paints(w io.Writer) painter {
	file, ok := w.(*os.File)
	return painter(ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())))
}

func (p painter) red(s string) string    { return p.paint("31", s) }
func (p painter) green(s string) string  { return p.paint("32", s) }
func (p painter) yellow(s string) string { return p.paint("33", s) }

func (p painter) paint(colour, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// severity is the colour of what doctor finds.
func (p painter) severity(of string) string {
	switch of {
	case "error":
		return p.red(of)
	case "warning":
		return p.yellow(of)
	}
	return of
}
