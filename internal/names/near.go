package names

import "strings"

// Resembles reports whether a name was probably meant for a known one. It is the rule of ojs._resembles, for what SQL does not see.
func Resembles(name, known string) bool {
	a, b := plain(name), plain(known)
	least := min(len(a), len(b))
	switch {
	case a == b:
		return true
	case least < 3 || max(len(a), len(b))-least > 2:
		return false
	}
	left, right := 0, 0
	for left < least && a[left] == b[left] {
		left++
	}
	for right < least-left && a[len(a)-1-right] == b[len(b)-1-right] {
		right++
	}
	x, y := a[left:len(a)-right], b[left:len(b)-right]
	return len(x)+len(y) == 1 ||
		len(x) == 1 && len(y) == 1 && least >= 6 ||
		len(x) == 2 && len(y) == 2 && x[0] == y[1] && x[1] == y[0] && least >= 4 ||
		least >= 9 && max(len(x), len(y)) <= 2
}

var separators = strings.NewReplacer("_", "", "-", "", ".", "", " ", "")

func plain(name string) string { return separators.Replace(strings.ToLower(name)) }

// IsTenant reports whether a client that uses name means the tenant, in whatever spelling: tenantId,
// TENANT, x-tenant-id.
func IsTenant(name string) bool {
	name = strings.TrimPrefix(strings.TrimPrefix(plain(name), "x"), "ojs")
	return name == "tenant" || name == "tenantid" || name == "tenantname"
}
