package jsonbody

import "github.com/go-json-experiment/json/jsontext"

// AppendString appends a JSON string, and escapes only what JSON demands. Invalid UTF-8 becomes
// U+FFFD.
func AppendString(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] <= '~' && s[i] != '"' && s[i] != '\\'
	}
	if plain {
		b = append(b, '"')
		b = append(b, s...)
		return append(b, '"')
	}
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
