# What one types most. .ci/run and .ci/full say what each of them is made of.

.PHONY: build test short ci full

build: # all packages, and shmctl
	go build ./...
	go build -o shmctl ./cmd/shmctl

short: # less of the same, for any user
	go test -short ./... ./testdata

test: # for any user; what needs root or a kernel feature says so and skips
	go test ./... ./testdata

ci: # all that has to hold before a change lands, as root, on a clean checkout
	.ci/run

full: # everything at full size, for hours, as root
	.ci/full
