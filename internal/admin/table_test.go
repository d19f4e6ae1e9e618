package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Workers name themselves: what is no plain text is quoted, or it would steer the operator's terminal.
func TestTables(t *testing.T) {
	t.Parallel()
	type Counts struct {
		Share float64 `json:"share"`
		IDs   []int   `json:"ids"`
	}
	type row struct {
		Name  string          `json:"name"`
		At    time.Time       `json:"at"`
		Until *time.Time      `json:"until,omitempty"`
		Tags  []string        `json:"tags"`
		About json.RawMessage `json:"about"`
		Counts
	}
	until := time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	rows := []row{
		{Name: "w1", Until: &until, Tags: []string{"a", "b"}, About: []byte("{}"), Counts: Counts{1.0 / 3, []int{7, 8}}},
		{Name: "\x1b[2Jhere\n"},
	}
	var out strings.Builder
	for _, err := range []error{Table(&out, rows[1:]), Table(&out, rows[:1]), Record(&out, rows[0].Counts)} {
		if err != nil {
			t.Error(err)
		}
	}
	if want := `name             at  until  tags  about  share  ids
"\x1b[2Jhere\n"                              0    0
name  at  until                 tags  about   share  ids
w1        2031-05-04T12:00:00Z  a,b   {}     0.3333    2
share  0.3333
ids    2
`; out.String() != want {
		t.Errorf("tables are\n%s, want\n%s", &out, want)
	}
}
