package admin

import (
	"fmt"
	"strconv"
	"strings"
)

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

// Count formats a number in at most seven columns, in thousands, millions or thousands of millions
// if it is large.
func Count(n int64) string {
	switch {
	case n >= 10_000_000_000:
		return strconv.FormatInt(n/1_000_000_000, 10) + "G"
	case n >= 10_000_000:
		return strconv.FormatInt(n/1_000_000, 10) + "M"
	case n >= 1_000_000:
		return strconv.FormatInt(n/1_000, 10) + "k"
	}
	return strconv.FormatInt(n, 10)
}

// Percent formats a part of 1 with one digit after the point: 0.75 is 75.0%.
func Percent(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) + "%" }

// Clip cuts a text to so many columns, three at least. Dots stand for what is left out: the end of
// a sentence or of a list, but the middle of a name, because names such as production-emails-eu
// often differ at the end only.
func Clip(text string, columns int) string {
	runes := []rune(text)
	if len(runes) <= columns {
		return text
	}
	keep, end := columns-3, 0
	if !strings.ContainsAny(text, " ,") {
		end = keep / 2
	}
	return string(runes[:keep-end]) + "..." + string(runes[len(runes)-end:])
}
