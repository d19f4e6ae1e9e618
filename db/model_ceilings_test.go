package db_test

import "testing"

// New jobs above their tenant's max_priority are refused or clamped, whichever way they come; those that are there keep their priorities.
func TestCeilingsFollowTheModel(t *testing.T) {
	schedules(t, 2, (*model).ceilings)
}

// ceiling is the highest priority that new jobs of a tenant may have.
type ceiling struct {
	most   int
	clamps bool
}

func (m *model) ceilings() {
	m.openDoors()
	m.prepare()
	for range 40 {
		switch m.r.IntN(6) {
		case 0:
			m.raise()
		case 1, 2:
			m.arrive()
		case 3:
			m.end()
		default:
			m.fetch(m.anyAsk(), true)
		}
	}
	m.drain()
}

// raise sets or removes the ceiling of a tenant.
func (m *model) raise() {
	tenant, of, over := m.pick(m.tenants), ceiling{m.r.IntN(3), m.r.IntN(2) == 0}, "refuse"
	if of.clamps {
		over = "clamp"
	}
	if m.r.IntN(4) == 0 {
		of.most = 100
	}
	m.did("priorities of %s up to %d, %s", tenant, of.most, over)
	m.exec(m.service, "select ojs.configure_tenant($1, p_max_priority => $2, p_over_priority => $3)", tenant, of.most, over)
	m.highest[tenant] = of
}

// allowed returns the priority that jobs get, or that they are refused.
func (m *model) allowed(a arrival) (priority int, refused bool) {
	of, has := m.highest[a.tenant]
	if !has || a.priority <= of.most {
		return a.priority, false
	}
	return of.most, !of.clamps
}
