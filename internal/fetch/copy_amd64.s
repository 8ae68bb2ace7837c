//go:build !race

#include "textflag.h"

// func move(to, from *byte, n uintptr)
TEXT ·move(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET

// func ownAll(p *byte, n uintptr)
// PREFETCHW (AX), which the assembler does not know, for each line.
TEXT ·ownAll(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

line:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08
	ADDQ $64, AX
	SUBQ $64, CX
	JHI  line
	RET
