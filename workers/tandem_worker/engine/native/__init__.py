"""The decoder's hot parts in C++ for CPUs with AVX-512: see docs/decisions/ and `library.find_library`."""
