package dispatch

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
