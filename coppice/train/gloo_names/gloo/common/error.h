// The header of c10d's Gloo backend names these files, and the libtorch wheel does not bring them.
// What it needs of them are a few names: pointers to these types pass through our hands unseen, and
// everything is made, used and destroyed inside libtorch.
#pragma once
