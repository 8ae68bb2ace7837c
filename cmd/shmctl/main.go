// Command shmctl looks at shared-memory completion queues, shows what they do, and measures them.
package main

import (
	"os"

	"github.com/shmring/shmring/cmd/shmctl/internal/command"
)

func main() { os.Exit(command.Process()) }
