#include "textflag.h"

// func own(p *atomic.Uint64)
// PREFETCHW (AX), which the assembler does not know. Processors without it do nothing.
TEXT ·own(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08
	RET
