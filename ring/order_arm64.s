//go:build !race

#include "textflag.h"

// func storeRelease(p *Index, v uint64)
// A DMB before a plain store rather than STLR: STLR followed by LDAR is ordered on arm64, which
// is the price that this function exists to avoid.
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	DMB  $0xb // ISH
	MOVD R1, (R0)
	RET
