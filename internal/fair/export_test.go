package fair

// Rest is how many callers are remembered, how many units are free and how many callers are in line for one.
func (g *Gate) Rest() (callers int, free int64, turns int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.callers), g.free, g.turns.Len()
}
