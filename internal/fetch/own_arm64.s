#include "textflag.h"

// func own(p *atomic.Uint64)
TEXT ·own(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET
