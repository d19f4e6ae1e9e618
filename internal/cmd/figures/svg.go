package main

import (
	"fmt"
	"html"
	"os"
	"strings"
)

// The picture has a light background of its own, so that it reads the same on a dark page.
const (
	colourOurs  = "#0969da"
	colourOther = "#8c959f"
	colourText  = "#1f2328"
	colourFaint = "#59636e"
	colourGrid  = "#d1d9e0"
)

// svg collects the elements of a picture.
type svg struct {
	width, height int
	text          strings.Builder
}

func newSVG(width, height int, title, description string) *svg {
	s := &svg{width: width, height: height}
	fmt.Fprintf(&s.text, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img"`+
		` font-family="-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">`+"\n", width, height, width, height)
	fmt.Fprintf(&s.text, "<title>%s</title>\n<desc>%s</desc>\n", html.EscapeString(title), html.EscapeString(description))
	fmt.Fprintf(&s.text, `<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" fill="#ffffff" stroke="%s"/>`+"\n",
		width-1, height-1, colourGrid)
	return s
}

// bar draws a horizontal bar with its value at its end. Even a value near zero has a bar that can be seen.
func (s *svg) bar(x, y, width, height float64, colour, value string) {
	width = max(width, 1.5)
	fmt.Fprintf(&s.text, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" fill="%s"/>`+"\n", x, y, width, height, colour)
	s.label(x+width+6, y+height-height/2+4.5, "start", 12, colourText, false, value)
}

func (s *svg) label(x, y float64, anchor string, size int, colour string, bold bool, text string) {
	weight := ""
	if bold {
		weight = ` font-weight="600"`
	}
	fmt.Fprintf(&s.text, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="%s"%s>%s</text>`+"\n",
		x, y, anchor, size, colour, weight, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64) {
	fmt.Fprintf(&s.text, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colourGrid)
}

func (s *svg) write(file string) error {
	return os.WriteFile(file, []byte(s.text.String()+"</svg>\n"), 0o644)
}
