package doorbell

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// roles are what child processes of these tests do; files for one system add to them.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }
