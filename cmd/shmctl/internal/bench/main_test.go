package bench

import (
	"os"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
)

func TestMain(m *testing.M) {
	if handled, code := stage.Enter(os.Args[1:], Tool); handled {
		os.Exit(code)
	}
	shmtest.Main(m)
}
