package file

// Whole stands for the whole file in place of the offset of a byte.
const Whole = -1
