//go:build unix && !linux

package bench

func filesystem(string) string { return "" }
