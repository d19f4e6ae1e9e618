//go:build unix && !linux

package bench

import "time"

func (e *Env) cpu() (time.Duration, bool) { return 0, false }

func ownTime() (time.Duration, bool) { return 0, false }

func processTime(int) (time.Duration, bool) { return 0, false }

func (e *Env) postgresTime() (time.Duration, bool) { return 0, false }
