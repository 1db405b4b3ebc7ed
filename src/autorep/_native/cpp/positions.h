// Lists of positions inside an image: checking them, and walking them by image and by channel.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings.h"

namespace autorep {

inline bool all_inside(const i64* positions, i64 count, i64 size) {
    i64 signs = 0;  // negative as soon as one position, or its distance to the last element, is
    for (i64 i = 0; i < count; ++i) signs |= positions[i] | (size - 1 - positions[i]);
    return signs >= 0;
}

// Whether none is negative and each is larger than the one before: eight whose ends are seven apart are neighbours then.
inline bool rising(const i64* positions, i64 count) {
    i64 signs = count ? positions[0] : 0;
    for (i64 i = 1; i < count; ++i)
        signs |= positions[i] | static_cast<i64>(static_cast<u64>(positions[i]) - static_cast<u64>(positions[i - 1]) - 1);
    return signs >= 0;
}

// Throws unless all lie inside; whether they rise.
inline bool require_inside(const Index& index, i64 size) {
    const i64* positions = index.data();
    const i64 count = static_cast<i64>(index.size());
    if (rising(positions, count) && (count == 0 || positions[count - 1] < size)) return true;
    if (all_inside(positions, count, size)) return false;
    for (i64 i = 0; i < count; ++i)
        if (positions[i] < 0 || positions[i] >= size)
            throw std::out_of_range("index[" + std::to_string(i) + "] = " + std::to_string(positions[i]) +
                                    " lies outside an image of " + std::to_string(size) + " elements");
    return false;
}

// body(image, begin, end) for the parts of begin..end, counted over all images of `count` positions each.
template <class Body>
void for_images(i64 begin, i64 end, i64 count, Body&& body) {
    while (begin < end) {
        const i64 image = begin / count, stop = end < (image + 1) * count ? end : (image + 1) * count;
        body(image, begin - image * count, stop - image * count);
        begin = stop;
    }
}

// body(channel, begin, end) for runs of positions of one channel, so that coefficients are constants of a loop. Where
// positions rise, the end of a run is found by bisection, without reading them all.
template <class Body>
void for_channels(const i64* positions, bool rise, i64 begin, i64 end, i64 per_channel, Body&& body) {
    while (begin < end) {
        const i64 channel = positions[begin] / per_channel, first = channel * per_channel;
        i64 last = begin + 1;
        if (rise) {
            const i64* most = positions + (begin + per_channel < end ? begin + per_channel : end);
            last = std::lower_bound(positions + last, most, first + per_channel) - positions;
        } else {
            while (last < end && static_cast<u64>(positions[last] - first) < static_cast<u64>(per_channel)) ++last;
        }
        body(channel, begin, last);
        begin = last;
    }
}

}  // namespace autorep
