//! The table that `ncu --csv --page raw` prints: one row per launch, one column per metric, a row of
//! units below the names, and lines of the counted program before it.

use super::{COUNTERS, KernelCounters, Reading};

/// Reads the counters of every kernel, in the order of their first launch; launches of one kernel are
/// averaged.
pub fn parse(text: &str) -> Result<Vec<KernelCounters>, String> {
    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("\"ID\"")).collect();
    let mut reader = ::csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(std::io::Cursor::new(table.join("\n")));
    let headings = reader.headers().map_err(|error| error.to_string())?.clone();
    let column = |name: &str| headings.iter().position(|heading| heading == name);
    let kernel_column = column("Kernel Name")
        .ok_or("no table with a column `Kernel Name`; print it with `ncu --csv --page raw`")?;
    let columns: Vec<(usize, &str)> = COUNTERS
        .iter()
        .filter_map(|counter| column(counter.metric).map(|column| (column, counter.name)))
        .collect();

    let mut kernels: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
    let mut units: Vec<String> = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|error| error.to_string())?;
        let kernel = row.get(kernel_column).unwrap_or_default();
        if kernel.is_empty() {
            units = row.iter().map(str::to_owned).collect();
            continue;
        }
        // `name(Params)` in some versions.
        let name = kernel.split('(').next().unwrap_or(kernel).trim().to_owned();
        let known = kernels.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            kernels.push((name, vec![Vec::new(); columns.len()]));
            kernels.len() - 1
        });
        for (values, (column, _)) in kernels[known].1.iter_mut().zip(&columns) {
            let unit = units.get(*column).map_or("", String::as_str);
            values.extend(row.get(*column).and_then(|text| number(text, unit)));
        }
    }
    if kernels.is_empty() {
        return Err("the table has no launches: no kernel matched".to_owned());
    }
    let averaged = kernels.into_iter().map(|(kernel, values)| KernelCounters {
        kernel,
        launches: values.iter().map(Vec::len).max().unwrap_or(0),
        readings: values
            .iter()
            .zip(&columns)
            .filter(|(values, _)| !values.is_empty())
            .map(|(values, (_, name))| Reading {
                name: (*name).to_owned(),
                value: values.iter().sum::<f64>() / values.len() as f64,
            })
            .collect(),
    });
    Ok(averaged.collect())
}

/// A number with thousands separated by commas, converted to base units.
fn number(text: &str, unit: &str) -> Option<f64> {
    let value: f64 = text.replace(',', "").parse().ok()?;
    let scale = match unit {
        // Times in nanoseconds, frequencies in hertz, sizes in bytes.
        "usecond" | "us" | "Kbyte" | "Khz" => 1e3,
        "msecond" | "ms" | "Mbyte" | "Mhz" => 1e6,
        "second" | "s" | "Gbyte" | "Ghz" => 1e9,
        _ => 1.0,
    };
    Some(value * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "==PROF== Connected to process 7\nmsdeform 0.1.0 on NVIDIA H200\n\
        \"ID\",\"Kernel Name\",\"dram__bytes.sum\",\"gpu__time_duration.sum\",\"l1tex__t_sector_hit_rate.pct\"\n\
        \"\",\"\",\"Mbyte\",\"usecond\",\"%\"\n\
        \"0\",\"fwd_tile_gather\",\"1,080.5\",\"90.5\",\"81.0\"\n\
        \"1\",\"fwd_tile_gather(ForwardParams)\",\"1,079.5\",\"91.5\",\"83.0\"\n\
        \"2\",\"bwd_x_scan\",\"1\",\"2\",\"n/a\"\n";

    #[test]
    fn launches_of_a_kernel_are_averaged_in_base_units() {
        let kernels = parse(TABLE).unwrap();
        assert_eq!(kernels.len(), 2);
        assert_eq!((kernels[0].kernel.as_str(), kernels[0].launches), ("fwd_tile_gather", 2));
        assert_eq!(kernels[0].get("dram_bytes"), Some(1080e6));
        assert_eq!(kernels[0].get("time_ns"), Some(91_000.0));
        assert_eq!(kernels[0].get("l1_hit_percent"), Some(82.0));
        assert_eq!(kernels[1].get("l1_hit_percent"), None, "what could not be read is left out");
        assert_eq!(kernels[1].get("unheard_of"), None);
    }

    #[test]
    fn a_text_without_a_table_is_refused() {
        assert!(parse("nothing").unwrap_err().contains("--page raw"));
        assert!(parse("\"ID\",\"Kernel Name\"\n").unwrap_err().contains("no launches"));
    }
}
