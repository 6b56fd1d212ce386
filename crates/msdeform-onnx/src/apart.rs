//! Writes a site around `GridSample` with the heads apart, for runtimes without a batch of images.
//!
//! `grid_sample` in `emit.rs` folds the heads into the batch, which is one call for each level. ncnn takes the first axis of every
//! tensor for a batch of one and drops it, so that it has no batch of heads. Here each head has calls of its own.

use crate::emit::{Writer, known_levels, known_points, number, same_levels};
use crate::proto::{Attribute, data_type};
use crate::site::Site;

impl Writer<'_> {
    /// The nodes from value `[N, S, M, D]`, locations and weights to the site's output.
    pub(crate) fn heads_apart(
        &mut self,
        site: &Site,
        opset: i64,
        [value, locations, weights]: [&str; 3],
        given_weights: &str,
    ) -> Result<(), String> {
        let attributes = self.sampling(opset)?;
        let (levels, points) = (known_levels(site)?, known_points(site)?);
        same_levels(levels.len(), points)?;
        if site.is_output_split {
            return Err(
                "its output has an axis for heads, which ncnn cannot keep apart from a batch"
                    .into(),
            );
        }
        let heads = site.heads.ok_or("the number of its heads is not known")?;
        let channels = number(site.channels.ok_or("the number of its channels is not known")?);
        let total = number(points.iter().sum());
        let each_head = vec![1; heads];
        let kind = data_type::FLOAT;
        let value = self.in_type(value, &site.value.tensor, kind);
        let value = self.transpose(&value, &[0, 2, 3, 1]);
        let values = self.split(&value, 1, &each_head);
        let grids = self.grids(locations, kind, number(heads), total);
        let grids = self.split(&grids, 1, &each_head);
        let weights = self.in_type(weights, given_weights, kind);
        let weights = self.reshape(&weights, &[0, 0, number(heads), total]);
        let weights = self.transpose(&weights, &[0, 2, 1, 3]);
        let weights = self.split(&weights, 1, &each_head);
        let mut sums = Vec::new();
        for ((value, grids), weights) in values.iter().zip(&grids).zip(&weights) {
            let images = self.slices(value, 3, levels);
            let grids = self.reshape(grids, &[0, -1, total, 2]);
            let grids = self.split(&grids, 2, points);
            let mut samples = Vec::new();
            for ((level, image), grid) in levels.iter().zip(&images).zip(&grids) {
                let target = [0, channels, number(level.height), number(level.width)];
                let image = self.reshape(image, &target);
                samples.push(self.push("GridSample", &[&image, grid], attributes.clone()));
            }
            let stacked = self.joined(&samples, 3);
            let products = self.push("Mul", &[&stacked, weights], vec![]);
            // Two axes, of which one has size one: pnnx, the converter of ncnn, loses a single axis.
            let products = self.reshape(&products, &[0, -1, 1, total]);
            let last = self.ints(&[2, 3]);
            let keepdims = vec![Attribute::int("keepdims", 0)];
            let summed = self.push("ReduceSum", &[&products, &last], keepdims);
            sums.push(self.reshape(&summed, &[0, channels, -1]));
        }
        let mut sums = self.joined(&sums, 1);
        if let Some(wanted) =
            self.facts.data_type(&site.value.tensor).filter(|&wanted| wanted != kind)
        {
            sums = self.cast(&sums, wanted);
        }
        let perm = vec![Attribute::ints("perm", &[0, 2, 1])];
        self.push_to("Transpose", &[&sums], perm, vec![site.output.clone()]);
        Ok(())
    }
}
