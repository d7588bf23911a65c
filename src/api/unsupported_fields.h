#pragma once

#include "api/object_reader.h"

namespace medley::api {

// Refuses fields that would change the answer and are not implemented, unless their value is the
// one that changes nothing. Marks them, and fields that need no action, as known.
void refuse_unsupported_fields(ObjectReader& reader);

}  // namespace medley::api
