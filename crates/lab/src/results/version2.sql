-- One row for each figure that counts, for whoever asks with SQL.
CREATE VIEW figure AS
SELECT run.name AS run, cell.experiment, cell.key AS cell, cell.block, cell.durability,
       metric.name AS metric, metric.unit, metric.value, metric.better, metric.headline
FROM metric JOIN cell ON cell.id = metric.cell JOIN run ON run.id = cell.run
WHERE cell.outcome = 'done';

CREATE INDEX metric_by_name ON metric (name);
