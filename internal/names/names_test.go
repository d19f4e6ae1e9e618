package names_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// Names that Go and SQL judged differently would be refused here as unknown although they exist there, or the other way round.
func TestNamesAreWhatSQLAccepts(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	pgtest.Exec(t, d.Pool, `
		create function public.takes_cron(p_name text) returns boolean language plpgsql as $$
		begin
			perform ojs.put_cron(p_name, '@daily', 'a');
			return true;
		exception when sqlstate 'OJ400' then
			return false;
		end $$`)
	for _, c := range []struct {
		what  string
		here  *regexp.Regexp
		there string
		most  int
	}{
		{"tenant", names.Tenant, "ojs._tenant_valid", 256},
		{"queue", names.Queue, "ojs._queue_name", 128},
		{"cron job", names.Cron, "public.takes_cron", 255},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			samples := []string{
				"", "_default", "_other", "_defaults", "_Other", "__default", "a_default", "_default.", " a", "a ", "a\n", "\na", "a\nb",
				"a\r\n", "_default\n", "\u00e4", "a\u00e4", "\u0131", "a\u017f", "\u212a", "a\u2028",
			}
			for char := '\x01'; char <= 0x7f; char++ { // PostgreSQL cannot hold NUL
				one := string(char)
				samples = append(samples, one, one+"b", "a"+one+"b", "a"+one)
			}
			for n := c.most - 2; n <= c.most+2; n++ {
				samples = append(samples, strings.Repeat("a", n), strings.Repeat("a", n-2)+"\u00e4", strings.Repeat("0-", n/2))
			}
			there := pgtest.List[bool](t, d.Pool,
				"select "+c.there+"(n.name) from unnest($1::text[]) with ordinality n(name, at) order by n.at", samples)
			taken := 0
			for i, name := range samples {
				if here := c.here.MatchString(name); here != there[i] {
					t.Errorf("%.20q of %d bytes: %v here, %v in SQL", name, len(name), here, there[i])
				} else if here {
					taken++
				}
			}
			if taken < 100 || taken > len(samples)-100 {
				t.Errorf("%d of %d names are taken", taken, len(samples))
			}
			if c.here.MatchString("a\x00") || c.here.MatchString("a\xff") {
				t.Error("what is no text is taken")
			}
		})
	}
}
