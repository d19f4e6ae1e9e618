package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
)

// durationFlag is an option that takes a duration in every form that readDuration reads.
type durationFlag = cli.FlagBase[time.Duration, cli.NoConfig, durationValue]

// durationValue reads an option with readDuration. The library has a value of its own, which reads
// Go's form only.
type durationValue time.Duration

func (durationValue) Create(val time.Duration, to *time.Duration, _ cli.NoConfig) cli.Value {
	*to = val
	return (*durationValue)(to)
}

func (durationValue) ToString(val time.Duration) string { return val.String() }

// Set reads an option.
func (d *durationValue) Set(text string) error {
	read, err := readDuration(text)
	*d = durationValue(read)
	return err
}

// Get returns the duration, for the library.
func (d *durationValue) Get() any { return time.Duration(*d) }

func (d *durationValue) String() string { return time.Duration(*d).String() }

var wholeDays = regexp.MustCompile(`^(\d{1,5})(d|w)$`)

// readDuration reads a duration: a number with a unit, such as 30s, 12h, 7d or 2w, or an ISO 8601
// duration, such as PT30M, as SQL and HTTP have it.
func readDuration(text string) (time.Duration, error) {
	if strings.HasPrefix(text, "P") {
		if d, err := jsonbody.ParseDuration(text); err == nil {
			return d, nil
		}
	} else if days := wholeDays.FindStringSubmatch(text); days != nil {
		n, _ := strconv.Atoi(days[1]) // at most five digits
		if days[2] == "w" {
			n *= 7
		}
		return time.Duration(n) * 24 * time.Hour, nil
	} else if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	return 0, fmt.Errorf("%q is not a duration such as 30s, 12h, 7d or PT30M", text)
}
