package place

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"peer": childPeer, "holder": childHolder})
}
