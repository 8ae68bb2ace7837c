package bench

import (
	"os"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	if handled, code := Child(os.Args[1:]); handled {
		os.Exit(code)
	}
	shmtest.Main(m)
}
