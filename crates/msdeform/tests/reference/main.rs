//! The `f64` reference against arithmetic done by hand, against the definition in another form and
//! against finite differences. Everything else in the project is compared with the reference, so
//! nothing here may rest on it: the tests place pixels in memory by themselves (`pyramid`).

#[cfg(test)]
mod backward;
#[cfg(test)]
mod forward;
#[cfg(test)]
mod from_offsets;
#[cfg(test)]
mod pyramid;
