package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// configFlag is the option that names a configuration of settings, pools, tiers and tenants.
func configFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "config", Sources: cli.EnvVars("OJS_CONFIG"),
		Usage: "`FILE` with settings, pools, tiers and tenants in JSON, or the JSON itself; " +
			"each entry is applied once (docs/operate/tiers.md)",
	}
}

// staticConfig is the content of a configuration file. Its entries stay JSON, because SQL decides
// what they mean and whether they are valid.
type staticConfig struct {
	Authoritative  bool                      `json:"authoritative"` // the file wins over later changes
	DefaultTenant  jsontext.Value            `json:"default_tenant"`
	TenantFairness jsontext.Value            `json:"tenant_fairness"`
	DefaultLimits  jsontext.Value            `json:"default_limits"`
	Tiers          map[string]jsontext.Value `json:"tiers"`
	Pool           jsontext.Value            `json:"pool"`
	Pools          jsontext.Value            `json:"pools"`   // an object by name, or an array
	Tenants        jsontext.Value            `json:"tenants"` // an object by id, or an array
}

// staticEntry is an entry of a configuration file: its path in the file, for errors, and the
// arguments of ojs.configure_static.
type staticEntry struct {
	path, kind, name string
	config           jsontext.Value
}

// readDocument returns the option itself if it is a JSON object, or the content of the file that it
// names.
func readDocument(option string) ([]byte, error) {
	if strings.HasPrefix(strings.TrimSpace(option), "{") {
		return []byte(option), nil
	}
	return os.ReadFile(option)
}

// readConfig reads a document of settings, pools, tiers and tenants, or the document of one tenant.
// It fails if the document is not JSON or has members that nobody reads: a misspelt name would
// change nothing.
func readConfig(option string) (config staticConfig, entries []staticEntry, err error) {
	text, err := readDocument(option)
	if err != nil {
		return config, nil, err
	}
	// A document with a tenant_id describes one tenant, without the list around it.
	var one map[string]jsontext.Value
	if err := json.Unmarshal(text, &one); err != nil {
		return config, nil, err
	}
	if _, alone := one["tenant_id"]; alone {
		config.Tenants = slices.Concat([]byte("["), text, []byte("]"))
	} else if err := config.read(text, one); err != nil {
		return config, nil, err
	}
	entries, err = config.entries()
	return config, entries, err
}

// read reads a document whose members are given, too.
func (s *staticConfig) read(text []byte, members map[string]jsontext.Value) error {
	known := []string{"authoritative", "default_tenant", "tenant_fairness", "default_limits", "tiers", "pool", "pools", "tenants"}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if slices.Contains(known, name) {
			continue
		}
		if meant := jsonbody.Resembled(name, known); meant != "" {
			return fmt.Errorf("%s is not known; %s is probably meant", name, meant)
		}
		return fmt.Errorf("%s is not known; the members are %s", name, strings.Join(known, ", "))
	}
	return json.Unmarshal(text, s)
}

// entries returns the entries in the order in which they are applied: tiers before tenants, which
// name them. It fails if a tenant or pool has no name, or if the default tier is described twice.
func (s *staticConfig) entries() (all []staticEntry, err error) {
	const byDefault = "default"
	for _, e := range []staticEntry{
		{"default_tenant", "setting", "default_tenant", s.DefaultTenant},
		{"tenant_fairness", "setting", "tenant_fairness", s.TenantFairness},
	} {
		if e.config != nil {
			all = append(all, e)
		}
	}
	if s.Pool != nil {
		if s.Pools != nil {
			return nil, errors.New("pool: there is pools, too; put all pools there")
		}
		s.Pools = slices.Concat([]byte("["), s.Pool, []byte("]"))
	}
	pools, err := listed("pools", "pool", "name", s.Pools)
	if err != nil {
		return nil, err
	}
	all = append(all, pools...)
	if s.DefaultLimits != nil {
		if _, twice := s.Tiers[byDefault]; twice {
			return nil, errors.New("default_limits: the tier default has limits, too; leave out one of them")
		}
		config := slices.Concat([]byte(`{"limits":`), s.DefaultLimits, []byte("}"))
		all = append(all, staticEntry{"default_limits", "tier", byDefault, config})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tiers)) {
		all = append(all, staticEntry{"tiers." + name, "tier", name, s.Tiers[name]})
	}
	tenants, err := listed("tenants", "tenant", "tenant_id", s.Tenants)
	return append(all, tenants...), err
}

// listed returns the entries of a member of the document: of an object by name, or of an array whose
// items have their name under key.
func listed(member, kind, key string, value jsontext.Value) (all []staticEntry, err error) {
	switch value.Kind() {
	case jsontext.KindInvalid, jsontext.KindNull:
	case jsontext.KindBeginObject:
		var byName map[string]jsontext.Value
		if err := json.Unmarshal(value, &byName); err != nil {
			return nil, fmt.Errorf("%s: %w", member, err)
		}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			all = append(all, staticEntry{member + "." + name, kind, name, byName[name]})
		}
	default:
		var items []jsontext.Value
		if err := json.Unmarshal(value, &items); err != nil {
			return nil, fmt.Errorf("%s: %w", member, err)
		}
		for i, config := range items {
			path := fmt.Sprintf("%s[%d]", member, i)
			var fields map[string]jsontext.Value
			if err := json.Unmarshal(config, &fields); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			var name string
			if err := json.Unmarshal(fields[key], &name); err != nil || name == "" {
				return nil, fmt.Errorf("%s: %s is missing", path, key)
			}
			all = append(all, staticEntry{path + " (" + name + ")", kind, name, config})
		}
	}
	return all, nil
}

// applyConfig applies the configuration of an option, if there is one. It has SQL check all entries
// before it changes anything. Each entry is a transaction of its own, because FETCHes wait for the
// locks of such a transaction. It fails with the path of the entry that SQL refuses.
func applyConfig(ctx context.Context, db *pg.DB, log *slog.Logger, option string) error {
	if option == "" {
		return nil
	}
	config, entries, err := readConfig(option)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	q := sqlcgen.New(db.Within(time.Minute).As("", "configuration file"))
	changed := 0
	for _, check := range []bool{true, false} {
		for _, e := range entries {
			did, err := q.ConfigureStatic(ctx, sqlcgen.ConfigureStaticParams{
				Kind: e.kind, Name: e.name, Config: e.config, Authoritative: config.Authoritative, CheckOnly: check,
			})
			if err = db.Err(err); err != nil {
				if refused, ok := errors.AsType[*pg.Error](err); ok && refused.Message != "" {
					err = errors.New(refused.Message)
				}
				return fmt.Errorf("configuration: %s: %w", e.path, err)
			}
			if did {
				changed++
			}
		}
	}
	log.Info("configuration applied", "entries", len(entries), "new or changed", changed)
	return nil
}
