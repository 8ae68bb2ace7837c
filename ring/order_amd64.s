//go:build !race

#include "textflag.h"

// func storeRelease(p *Index, v uint64)
// Stores are not reordered with earlier loads and stores on amd64, so a MOV is a release store.
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET
