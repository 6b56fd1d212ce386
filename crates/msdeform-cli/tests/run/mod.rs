//! `msdeform run` on the real binary: tensors in files, results in files, messages and exit codes.

#[cfg(test)]
mod computes;
#[cfg(test)]
mod files;
#[cfg(test)]
mod from_offsets;
#[cfg(test)]
mod refuses;
#[cfg(test)]
mod tensor_files;
