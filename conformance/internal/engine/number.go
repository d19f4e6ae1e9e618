package engine

import (
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
)

// maxExponent bounds what is expanded into a fraction: "1e999999999" is a short text and a huge number.
const maxExponent = 5000

// number returns the exact value of a JSON number; false for other values and for numbers out of reach.
func number(v any) (*big.Rat, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return nil, false
	}
	return parseNumber(n.String())
}

func parseNumber(s string) (*big.Rat, bool) {
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		exp, err := strconv.Atoi(s[i+1:])
		if err != nil || exp > maxExponent || exp < -maxExponent {
			return nil, false
		}
	}
	// Rat also reads fractions, hexadecimal and underscores, none of which is a JSON number.
	if strings.Trim(s, "0123456789+-.eE") != "" {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// equal compares two decoded JSON values: objects without regard to key order, numbers by exact value.
func equal(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return false
		}
		x, okx := number(a)
		y, oky := number(b)
		if okx && oky {
			return x.Cmp(y) == 0
		}
		return a == b
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			w, ok := b[k]
			if !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	default:
		// What remains is string, bool and nil. The other side may be a map or a slice, which == would panic on.
		switch b.(type) {
		case map[string]any, []any:
			return false
		}
		return a == b
	}
}
