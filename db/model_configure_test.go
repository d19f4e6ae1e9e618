package db_test

import (
	"fmt"
	"strings"
)

// scope returns a random scope of a rule: a tenant, a tenant in a queue, or a queue.
func (m *model) scope() [2]string {
	return [][2]string{{m.pick(m.tenants), ""}, {m.pick(m.tenants), m.pick(m.queues)}, {"", m.pick(m.queues)}}[m.r.IntN(3)]
}

// configure makes a random change of configuration.
func (m *model) configure() {
	switch m.r.IntN(8) {
	case 0, 1:
		of := m.scope()
		m.limit(of, 1+m.r.IntN(4))
	case 2:
		m.unlimit(m.scope())
	case 3:
		of := m.scope()
		if m.r.IntN(5) == 0 {
			of = [2]string{}
		}
		m.pause(of)
	case 4:
		m.resumeAll()
	case 5:
		if m.r.IntN(2) == 0 {
			m.share()
		}
		m.weigh()
	default:
		m.configurePool()
	}
}

func (m *model) limit(of [2]string, most int) {
	m.did("limit %q to %d", of, most)
	m.exec(m.service, "select ojs.limit_concurrency($1, nullif($2, ''), nullif($3, ''))", most, of[0], of[1])
	m.limits[of] = most
}

func (m *model) unlimit(of [2]string) {
	m.did("no limit of %q", of)
	m.exec(m.service, "select ojs.limit_concurrency(null, nullif($1, ''), nullif($2, ''))", of[0], of[1])
	delete(m.limits, of)
}

func (m *model) pause(of [2]string) {
	m.did("pause %q", of)
	m.exec(m.service, "select ojs.pause(coalesce(nullif($2, ''), case when $1 = '' then '*' end), nullif($1, ''))", of[0], of[1])
	m.paused[of] = len(m.steps)
}

func (m *model) resumeAll() {
	for of := range m.paused {
		m.did("resume %q", of)
		m.exec(m.service, "select ojs.resume(coalesce(nullif($2, ''), case when $1 = '' then '*' end), nullif($1, ''))", of[0], of[1])
		delete(m.paused, of)
	}
}

// share changes the fairness of a queue (which changes no limit), its priority_scope, and whether it is
// first in, first out.
func (m *model) share() {
	queue := m.pick(m.queues)
	how := []string{
		`{}`, `{"unit": "time"}`, `{"unit": "cost"}`, `{"enabled": false}`, `{"priority_scope": "tenant"}`,
		`{"unit": "time", "priority_scope": "tenant"}`,
	}[m.r.IntN(6)]
	m.shareAs(queue, how)
}

func (m *model) shareAs(queue, how string) {
	m.own[queue], m.fifo[queue] = strings.Contains(how, "scope"), strings.Contains(how, `"enabled": false`)
	m.did("tenants of %s share by %s", queue, how)
	m.exec(m.service, "select ojs.configure_queue($1, jsonb_build_object('tenant_fairness', $2::text::jsonb))", queue, how)
}

func (m *model) weigh() {
	tenant, boost := m.pick(m.tenants), m.r.IntN(4)-1
	weight := []float64{0.1, 0.37, 1, 2.5, 10}[m.r.IntN(5)]
	m.did("tenant %s weighs %g, boost %d", tenant, weight, boost)
	m.exec(m.service, "select ojs.configure_tenant($1, $2::float8::numeric, $3)", tenant, weight, boost)
	m.boost[tenant] = boost
}

func (m *model) configurePool() {
	name := m.pick([]string{"p1", "p1", "p2", "p2", "default", "*"})
	old, known := m.pools[name]
	if known && m.r.IntN(3) == 0 {
		m.did("delete pool %s", name)
		m.exec(m.service, "select ojs.delete_pool($1, true)", name)
		delete(m.pools, name)
		return
	}
	p := &modelPool{}
	if known {
		// What its workers run counts on.
		p = old
		*p = modelPool{}
	}
	var config []string
	if m.r.IntN(2) == 0 {
		p.strategy = m.pick([]string{"strict", "round-robin", "weighted", "least-loaded"})
		config = append(config, fmt.Sprintf(`"strategy": %q`, p.strategy))
	}
	if m.r.IntN(4) == 0 {
		p.ratio = []float64{0.05, 0.1, 0.2}[m.r.IntN(3)]
		config = append(config, fmt.Sprintf(
			`"starvation_prevention": {"enabled": true, "rotation_interval": "PT1H", "min_dispatch_ratio": %g}`, p.ratio))
	}
	if name != "*" {
		config = append(config, m.poolRest(p)...)
	}
	text := "{" + strings.Join(config, ", ") + "}"
	m.did("pool %s: %s", name, text)
	m.pools[name] = p
	m.exec(m.service, "select ojs.configure_pool($1, $2::text::jsonb)", name, text)
}

// poolRest returns settings of a pool that cannot be combined with each other.
func (m *model) poolRest(p *modelPool) (config []string) {
	if m.r.IntN(2) == 0 {
		p.queues = some(m.r, m.queues)
		config = append(config, `"queues": ["`+strings.Join(p.queues, `", "`)+`"]`)
	}
	if m.r.IntN(3) == 0 {
		p.tenants = some(m.r, m.tenants)
		config = append(config, `"tenants": ["`+strings.Join(p.tenants, `", "`)+`"]`)
	}
	if m.r.IntN(3) == 0 {
		p.most = 1 + m.r.IntN(5)
		config = append(config, fmt.Sprintf(`"concurrency": %d`, p.most))
	}
	free := p.queues != nil || p.tenants != nil
	for _, o := range m.pools {
		free = free && (o == p || !o.isolated)
	}
	if free && m.r.IntN(3) == 0 {
		p.isolated = true
		config = append(config, `"isolated": true`)
	}
	return config
}
