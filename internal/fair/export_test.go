package fair

// Rest returns the number of callers that the Gate remembers, of free units, and of callers in turns.
func (g *Gate) Rest() (callers int, free int64, turns int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.callers), g.free, g.turns.Len()
}
