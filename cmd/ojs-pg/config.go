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

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func configFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "config", Sources: cli.EnvVars("OJS_CONFIG"),
		Usage: "`FILE` with tiers, tenants and their limits, in JSON, or the JSON itself; what it says is applied once " +
			"(docs/operate/tiers.md)",
	}
}

// staticConfig is what a file says of tiers and tenants. What the entries mean, and whether they are right, SQL decides.
type staticConfig struct {
	Authoritative bool                      `json:"authoritative"`
	DefaultLimits jsontext.Value            `json:"default_limits"`
	Tiers         map[string]jsontext.Value `json:"tiers"`
	Tenants       jsontext.Value            `json:"tenants"`
}

// staticEntry is one of them: its path in the file, and what ojs.configure_static takes.
type staticEntry struct {
	path, kind, name string
	config           jsontext.Value
}

// readDocument is the text itself, if that is an object, or what a file has.
func readDocument(option string) ([]byte, error) {
	if strings.HasPrefix(strings.TrimSpace(option), "{") {
		return []byte(option), nil
	}
	return os.ReadFile(option)
}

// readConfig reads a document of tiers and tenants.
func readConfig(option string) (config staticConfig, entries []staticEntry, err error) {
	text, err := readDocument(option)
	if err != nil {
		return config, nil, err
	}
	// The document of one tenant alone is a configuration, too.
	var one map[string]jsontext.Value
	if err := json.Unmarshal(text, &one); err != nil {
		return config, nil, err
	}
	if _, alone := one["tenant_id"]; alone {
		config.Tenants = slices.Concat([]byte("["), text, []byte("]"))
	} else if err := json.Unmarshal(text, &config, json.RejectUnknownMembers(true)); err != nil {
		return config, nil, err
	}
	entries, err = config.entries()
	return config, entries, err
}

// entries are tiers first, because tenants name them.
func (s *staticConfig) entries() (all []staticEntry, err error) {
	const byDefault = "default"
	if s.DefaultLimits != nil {
		if _, twice := s.Tiers[byDefault]; twice {
			return nil, errors.New("default_limits: the tier default says it, too")
		}
		config := slices.Concat([]byte(`{"limits":`), s.DefaultLimits, []byte("}"))
		all = append(all, staticEntry{"default_limits", "tier", byDefault, config})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tiers)) {
		all = append(all, staticEntry{"tiers." + name, "tier", name, s.Tiers[name]})
	}
	switch s.Tenants.Kind() {
	case jsontext.KindInvalid, jsontext.KindNull:
	case jsontext.KindBeginObject:
		var tenants map[string]jsontext.Value
		if err := json.Unmarshal(s.Tenants, &tenants); err != nil {
			return nil, fmt.Errorf("tenants: %w", err)
		}
		for _, name := range slices.Sorted(maps.Keys(tenants)) {
			all = append(all, staticEntry{"tenants." + name, "tenant", name, tenants[name]})
		}
	default:
		var tenants []jsontext.Value
		if err := json.Unmarshal(s.Tenants, &tenants); err != nil {
			return nil, fmt.Errorf("tenants: %w", err)
		}
		for i, config := range tenants {
			path := fmt.Sprintf("tenants[%d]", i)
			var tenant struct {
				ID string `json:"tenant_id"`
			}
			if err := json.Unmarshal(config, &tenant); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			} else if tenant.ID == "" {
				return nil, fmt.Errorf("%s: tenant_id is missing", path)
			}
			all = append(all, staticEntry{path + " (" + tenant.ID + ")", "tenant", tenant.ID, config})
		}
	}
	return all, nil
}

// applyConfig applies a configuration, all of which is looked at before anything is changed. Each entry is a transaction of its own,
// because decisions wait for one.
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
