package shm

// Layout of page 0, in bytes from its start; the package comment draws it.
const (
	headerBytes = 4096 // also on systems with larger pages, whose first section begins later

	offMagic      = 0
	offByteOrder  = offMagic + 8
	offABIMajor   = offByteOrder + 4
	offABIMinor   = offABIMajor + 2
	offHeaderLen  = offABIMinor + 2
	offKind       = offHeaderLen + 4
	offTotal      = offKind + 4
	offFeatCompat = offTotal + 8
	offFeatRO     = offFeatCompat + 8
	offFeatIncomp = offFeatRO + 8
	offUUID       = offFeatIncomp + 8
	offGeneration = offUUID + 16
	offBootID     = offGeneration + 8
	offPID        = offBootID + 16
	offPIDNS      = offPID + 8
	offStart      = offPIDNS + 8
	offMonoNs     = offStart + 8
	offRealNs     = offMonoNs + 8
	offNameLen    = offRealNs + 8
	offSectionCnt = offNameLen + 4
	offName       = offSectionCnt + 4
	offReserved   = offName + maxNameBytes // zero; a later minor version may use it
	offAttrs      = offReserved + 48
	offSections   = offAttrs + attrCount*8
	offChecksum   = offSections + maxSections*sectionBytes // CRC32C of everything before it

	// The words that change. Each group is a line of its own, apart by 128 bytes because
	// prefetchers fetch lines in pairs.
	offState      = 0xa00 // written last by the creator
	offTurn       = 0xa80 // number of owner records written; its low bit picks the slot
	offCurrentGen = offTurn + 8
	offOwner0     = 0xb00
	offOwner1     = offOwner0 + ownerBytes
	offDeaths     = offOwner1 + ownerBytes

	attrCount    = 16
	maxSections  = 32
	sectionBytes = 64
	ownerBytes   = 128
)

// An entry of the section table, in bytes from its start.
const (
	secKind     = 0
	secID       = secKind + 4
	secOffset   = secID + 4
	secLength   = secOffset + 8
	secElem     = secLength + 8
	secCapacity = secElem + 8
	secHash     = secCapacity + 8
	secAlign    = secHash + 8
	secEnd      = secAlign + 8
)

// An owner record, in bytes from its start.
const (
	ownPID     = 0
	ownPIDNS   = ownPID + 8
	ownStart   = ownPIDNS + 8
	ownBootLo  = ownStart + 8
	ownBootHi  = ownBootLo + 8
	ownState   = ownBootHi + 8
	ownClaimed = ownState + 8
	ownGen     = ownClaimed + 8
	ownProgram = ownGen + 8
	// ownProgramGen is the generation that ownProgram is of. A version that knows neither word leaves
	// those of a former owner.
	ownProgramGen = ownProgram + 8
	ownEnd        = ownProgramGen + 8
)

const (
	magic         = "shmring\x00"
	byteOrderMark = 0x01020304 // little-endian: 04 03 02 01
	byteOrderSwap = 0x04030201

	// ABIMajor and ABIMinor are the version of the layout. Major 0 is unstable: both numbers
	// must then match. From major 1 on a higher minor version only adds what may be ignored.
	ABIMajor = 0
	ABIMinor = 1
)

// Every offset is pinned: an index other than 0 does not compile.
var (
	pin = [1]struct{}{}

	_ = pin[offByteOrder-0x008]
	_ = pin[offABIMajor-0x00c]
	_ = pin[offABIMinor-0x00e]
	_ = pin[offHeaderLen-0x010]
	_ = pin[offKind-0x014]
	_ = pin[offTotal-0x018]
	_ = pin[offFeatCompat-0x020]
	_ = pin[offFeatRO-0x028]
	_ = pin[offFeatIncomp-0x030]
	_ = pin[offUUID-0x038]
	_ = pin[offGeneration-0x048]
	_ = pin[offBootID-0x050]
	_ = pin[offPID-0x060]
	_ = pin[offPIDNS-0x068]
	_ = pin[offStart-0x070]
	_ = pin[offMonoNs-0x078]
	_ = pin[offRealNs-0x080]
	_ = pin[offNameLen-0x088]
	_ = pin[offSectionCnt-0x08c]
	_ = pin[offName-0x090]
	_ = pin[offReserved-0x0d0]
	_ = pin[offAttrs-0x100]
	_ = pin[offSections-0x180]
	_ = pin[offChecksum-0x980]
	_ = pin[offState-0xa00]
	_ = pin[offTurn-0xa80]
	_ = pin[offCurrentGen-0xa88]
	_ = pin[offOwner0-0xb00]
	_ = pin[offOwner1-0xb80]
	_ = pin[offDeaths-0xc00]

	_ = pin[secID-0x04]
	_ = pin[secOffset-0x08]
	_ = pin[secLength-0x10]
	_ = pin[secElem-0x18]
	_ = pin[secCapacity-0x20]
	_ = pin[secHash-0x28]
	_ = pin[secAlign-0x30]

	_ = pin[ownPIDNS-0x08]
	_ = pin[ownStart-0x10]
	_ = pin[ownBootLo-0x18]
	_ = pin[ownBootHi-0x20]
	_ = pin[ownState-0x28]
	_ = pin[ownClaimed-0x30]
	_ = pin[ownGen-0x38]
	_ = pin[ownProgram-0x40]
	_ = pin[ownProgramGen-0x48]

	_ = [1]struct{}{}[uint(secEnd)/(sectionBytes+1)]
	_ = [1]struct{}{}[uint(ownEnd)/(ownerBytes+1)]
	_ = [1]struct{}{}[uint(offChecksum+4)/(offState+1)]
	_ = [1]struct{}{}[uint(offDeaths+deathSlots*deathBytes)/(headerBytes+1)]
	_ = [1]struct{}{}[uint(deadEnd)/(deathBytes+1)]
)
