"""The decoder's hot parts in C++ for CPUs with AVX-512 or AVX2: see docs/decisions/ and `library.find_library`."""
