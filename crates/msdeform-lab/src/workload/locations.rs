//! Where the samples of a workload lie.

use serde::{Deserialize, Serialize};

use crate::names::named;

named! {
    /// A way to draw sampling locations.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Locations "locations" {
        /// What trained models do: around the query's reference point, `0.75 (p + 1)` pixels of each level in the head's
        /// direction `2 pi m / M`, plus Gaussian noise of one pixel.
        Local "local",
        /// Uniform in `[0, 1)`: the worst case for caches.
        Uniform "uniform",
        /// Every sample outside of its level.
        Outside "outside",
        /// NaN, infinite, huge, exactly on borders, and ordinary ones between them.
        Hostile "hostile",
        /// Every sample of a level between the same four pixels, so that all updates of the backward meet there.
        OnePlace "one_place",
    }
}
