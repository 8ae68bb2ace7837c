package xdp

// The object is committed, so building needs no clang. Regenerate it with clang 14 after a change
// of the C source; the include path is where Debian keeps <asm/types.h>.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go@v0.22.0 -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux steer bpf/steer.c -- -O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu
