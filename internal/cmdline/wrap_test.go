package cmdline

import "testing"

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"short", "short"},
		{"exactly twenty chars", "exactly twenty chars"},
		{"a line that is longer than twenty", "a line that is\n  longer than twenty"},
		{"    indented text that is long", "    indented text\n  that is long"},
		{"one line\nand another\n", "one line\nand another\n"},
		{"a postgres://user@127.0.0.1:5432/database that stays whole", "a\n  postgres://user@127.0.0.1:5432/database\n  that stays whole"},
		{"für alle Wörter zählt die Breite", "für alle Wörter\n  zählt die Breite"},
	} {
		if got := Wrap(c.text, "  ", 20); got != c.want {
			t.Errorf("%q is wrapped to\n%s\nwant\n%s", c.text, got, c.want)
		}
	}
}
