// Its own module: net/http and what it needs are a sixth of what the tests of all else compile.
module github.com/shmring/shmring/examples/web

go 1.26.0

require github.com/shmring/shmring v0.0.0

require (
	github.com/edsrzf/mmap-go v1.2.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/shmring/shmring => ../..
