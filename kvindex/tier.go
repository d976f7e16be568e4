package kvindex

// A Tier says where a block lies. Smaller is faster.
type Tier uint8

// The tiers, fastest first.
const (
	TierGPU    Tier = iota // device memory
	TierCPU                // host memory
	TierDisk               // local disk
	TierObject             // shared or remote storage

	// Tiers is the number of tiers.
	Tiers = 4
	// TierUnknown is a medium with a name that is not known. It is counted and
	// never indexed: unknown must not rank as device memory.
	TierUnknown Tier = 0xff
)

var tierNames = [Tiers]string{"gpu", "cpu", "disk", "object"}

// String is the tier's short name.
func (t Tier) String() string {
	if int(t) < Tiers {
		return tierNames[t]
	}
	return "unknown"
}

// ParseTier maps an engine's medium string, in any case, to a tier. The empty
// string, which engines send as nil, is the GPU. It allocates nothing.
func ParseTier(medium string) Tier {
	switch len(medium) {
	case 0:
		return TierGPU
	case 3:
		if fold(medium, "GPU") {
			return TierGPU
		}
		if fold(medium, "CPU") {
			return TierCPU
		}
	case 4:
		if fold(medium, "DISK") || fold(medium, "NVME") {
			return TierDisk
		}
	case 6:
		if fold(medium, "REMOTE") || fold(medium, "SHARED") {
			return TierObject
		}
	case 7:
		if fold(medium, "STORAGE") {
			return TierDisk
		}
		if fold(medium, "NETWORK") {
			return TierObject
		}
	case 8:
		if fold(medium, "EXTERNAL") {
			return TierObject
		}
	case 9:
		if fold(medium, "CPU_TIER1") {
			return TierCPU
		}
		if fold(medium, "CPU_TIER2") {
			return TierDisk
		}
	case 10:
		if fold(medium, "CPU_PINNED") {
			return TierCPU
		}
	}
	return TierUnknown
}

// fold compares s with an upper-case ASCII name of the same length.
func fold(s, upper string) bool {
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != upper[i] {
			return false
		}
	}
	return true
}
