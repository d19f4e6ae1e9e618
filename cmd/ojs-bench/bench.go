package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/bench"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/embedpg"
)

type benchmarks struct{}

// child returns the command of the processes that benchmarks start, which is this program.
func (benchmarks) child() *cli.Command {
	return &cli.Command{
		Name: "child", Hidden: true, Usage: "what other benchmarks start",
		Action: func(ctx context.Context, c *cli.Command) error {
			return bench.RunChild(ctx, c.Args().First(), os.Stdin, c.Root().Writer, cmdline.Logger(c))
		},
	}
}

// self returns the command line that starts this program as a child.
func self(c *cli.Command) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program that runs: %w", err)
	}
	return []string{program, "--log-level", c.String("log-level"), "--log-format", c.String("log-format"), "child"}, nil
}

// stressFlags returns flags for conditions that are worse than those of an idle, tuned machine.
func stressFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "stock", Usage: "leave all settings of the own PostgreSQL at their defaults"},
		&cli.IntFlag{
			Name: "hogs", Usage: "`NUMBER` of busy processes beside, which compete for the processors",
			Validator: cmdline.AtLeast(0),
		},
	}
}

// flags returns a benchmark's own flags and then those that every benchmark has.
func (benchmarks) flags(own ...cli.Flag) []cli.Flag {
	return append(own,
		&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		&cli.StringFlag{
			Name: "database-url", Sources: cli.EnvVars("DATABASE_URL"),
			Usage: "`URL` of a database without jobs, for a superuser. Without it a PostgreSQL of its own is started",
		},
		&cli.StringFlag{
			Name: "dir", Sources: cli.EnvVars("OJS_BENCH_DIR"), DefaultText: "that for temporary files",
			Usage: "`DIRECTORY` in which the own PostgreSQL keeps its data meanwhile; on the disk to be measured, not in memory",
		},
		&cli.StringFlag{
			Name: "postgres-bin", Sources: cli.EnvVars(embedpg.BinEnv),
			Usage: "`DIRECTORY` of PostgreSQL's programs (15 or later), instead of searching",
		},
	)
}

// sliceFlags returns the flags for the number and the length of slices, with their defaults.
func sliceFlags(slices int, seconds float64) []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "slices", Value: slices, Usage: "`NUMBER` of slices of each side", Validator: cmdline.AtLeast(1)},
		&cli.FloatFlag{Name: "seconds", Value: seconds, Usage: "`SECONDS` of a slice", Validator: cmdline.AtLeast(0.001)},
		argsFlag(),
	}
}

// baselineFlag returns the flag that names the baseline.
func baselineFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "baseline", Value: bench.Unfair, Validator: cmdline.OneOf(bench.Unfair, bench.Fair),
		Usage: "`QUEUE` that ours is compared with: unfair, or fair by one statement",
	}
}

// crowdFlags returns the flags of a benchmark in which producers and workers of several tenants work at
// the same time: first, common ones, then more.
func crowdFlags(first cli.Flag, more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		first,
		&cli.IntFlag{Name: "workers", Value: 16, Usage: "`NUMBER` of workers at once", Validator: cmdline.AtLeast(1)},
		&cli.IntFlag{Name: "batch", Value: 10, Usage: "`NUMBER` of jobs asked for at once", Validator: cmdline.Between(1, 1000)},
		&cli.IntFlag{Name: "producers", Value: 4, Usage: "`NUMBER` of producers at once", Validator: cmdline.AtLeast(1)},
		&cli.IntFlag{
			Name: "tenants", Value: 3,
			Usage: "`NUMBER` of tenants; 3 have weights 10:5:1, others equal ones", Validator: cmdline.AtLeast(1),
		},
	}, more...)
}

// argsFlag returns the flag for the size of jobs.
func argsFlag() cli.Flag {
	return &cli.IntFlag{Name: "args-bytes", Value: 100, Usage: "`BYTES` of args of each job", Validator: cmdline.AtLeast(5)}
}

// run opens the server, calls measure, prints the result, and removes all that was made.
func (b benchmarks) run(
	measure func(context.Context, *bench.Env, *cli.Command) (any, error), checks ...func(*cli.Command) error,
) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) (err error) {
		if err := cmdline.NoArguments(c); err != nil {
			return err
		}
		if c.String("database-url") != "" && (c.Bool("stock") || c.Int("partitions") > 1) {
			return cmdline.Misuse(errors.New("--stock and --partitions are for the PostgreSQL that is started here, " +
				"and DATABASE_URL names another one"))
		}
		for _, check := range checks {
			if err := check(c); err != nil {
				return cmdline.Misuse(err)
			}
		}
		log := cmdline.Logger(c)
		bar := cmdline.NewProgress(c.Root().ErrWriter, log)
		defer bar.Finish()
		again, err := self(c)
		if err != nil {
			return err
		}
		env, err := bench.Open(ctx, bench.Options{
			DatabaseURL: c.String("database-url"), Dir: c.String("dir"), BinDir: c.String("postgres-bin"), Stock: c.Bool("stock"),
			Self: again, Log: log, Progress: bar.Report,
		})
		if err != nil {
			return err
		}
		result, err := measure(ctx, env, c)
		closed := env.Close()
		bar.Finish()
		if err != nil {
			return err
		}
		if c.Bool("json") {
			out := json.NewEncoder(c.Root().Writer)
			out.SetIndent("", "  ")
			err = out.Encode(result)
		} else {
			err = printTable(c.Root().Writer, result)
		}
		if err == nil {
			err = closed
		}
		return err
	}
}

const dispatchHelp = `WORKERS workers each ask for BATCH jobs, acknowledge them, and ask again; a job that was acknowledged counts.

  --path combined  in the server's process, by the engine that also answers HTTP
  --path sql       each worker on a connection of its own: select * from ojs.fetch(...), then ojs.ack or ojs.ack_many
  --path http      each worker by HTTP to a server in a process of its own, on the loopback interface, connections kept alive

Ours runs with everything on: as a role under row security, with leases and attempts, and with the clock. The baseline is a queue on the
same server: one table with the same columns and an index on what waits; its workers take jobs by 'update ... returning' all columns,
and acknowledge them by one update; prepared statements, a connection each.

  --baseline unfair  the oldest jobs: 'where id in (select ... order by priority desc, seq limit n for update skip locked)'
  --baseline fair    what others ship as fair, in one statement: the tenants with work by a loose index scan (recursive), of each its
                     oldest jobs (lateral), and of all these, in the order of row_number() by tenant / weight, the first n that can be
                     locked (skip locked). Its lag and its share errors are reported, too (baseline_max_lag_quanta and so on): so the
                     price of an exact order is seen

  ratio                 jobs per second, ours to the baseline's: the median of the slices
  cpu_us_per_job        microseconds of a processor per job: {postgresql, server, client}, the median of the slices. postgresql: all
                        its processes, those that ended included; server: the Go server; client: workers and producers, null with
                        --path combined, where they are in the server's process. baseline_cpu_us_per_job: of the baseline, which has
                        no server
  cpu_ratio             that of PostgreSQL, ours to the baseline's; null but on Linux with a PostgreSQL of its own
  share_error_pp        by how many percentage points a tenant's share of all dispatches was off, the worst tenant; share_error_1s_pp:
                        of the dispatches within one second, the worst second
  max_lag_quanta        by how many jobs a tenant was away from what was due to it, the worst over every prefix of the sequence of
                        dispatches
  response_share_error  the same within one response, in jobs
  http_ceiling_ratio    with --path http: jobs per second to those of the same server and clients with the database cut out, where the
                        same handlers answer with jobs that were made before
  wal_bytes_per_job     log written while a job is fetched and acknowledged, and with --producers while one is enqueued

The sequence of dispatches is that of the decisions, which are serial, and within them that of the rows. What is due is
what a server would have done that works for all tenants with work at once, by weight.

With --producers, each side's producers enqueue a hundred jobs to a transaction, and rest when they have enqueued as many as were taken:
so a job is enqueued for each one dispatched, on both sides, and what that costs is in all figures. Where live_jobs_per_second is far
from jobs_per_second the producers could not keep up, and cpu_ratio compares different work: give more of them.

--churn judges the order and not the speed, over one connection: a tenant with a backlog beside many of weight 1 that send single jobs,
or one to three, at half the rate of service, fetched by ones and by tens. max_lag is that of the first, small_max_lag that of the worst
of the others, and within_bounds says whether they keep to the bounds of the design. Of the flags only --dispatches, --seed, --stock and
--args-bytes count then.`

// dispatchFlags returns the flags of ojs-bench dispatch.
func dispatchFlags() []cli.Flag {
	own := []cli.Flag{
		&cli.StringFlag{
			Name: "path", Value: "combined", Usage: "`WAY` to the jobs: combined, sql or http",
			Validator: cmdline.OneOf("combined", "sql", "http"),
		},
		&cli.IntFlag{Name: "workers", Value: 16, Usage: "`NUMBER` of workers at once", Validator: cmdline.AtLeast(1)},
		&cli.IntFlag{Name: "batch", Value: 1, Usage: "`NUMBER` of jobs asked for at once", Validator: cmdline.AtLeast(1)},
		&cli.IntFlag{
			Name: "tenants", Value: 3, Validator: cmdline.AtLeast(1),
			Usage: "`NUMBER` of tenants; 3 have weights 10:5:1, others equal ones",
		},
		&cli.BoolFlag{
			Name: "limits", Usage: "a limit for every tenant, and half as many tenants beside them who have work and are at theirs",
		},
		baselineFlag(),
		&cli.BoolFlag{Name: "zipf", Usage: "backlogs by Zipf's law and equal weights, so that small tenants come and go"},
		&cli.IntFlag{
			Name: "producers", Usage: "`NUMBER` of connections of each side that enqueue meanwhile",
			Validator: cmdline.AtLeast(0),
		},
		&cli.IntFlag{
			Name: "partitions", Value: 1, Validator: cmdline.Between(1, 200),
			Usage: "`NUMBER` of partitions that our table of jobs is cut into before, all with jobs in them; a second is needed for each",
		},
	}
	churn := []cli.Flag{
		&cli.BoolFlag{Name: "churn", Usage: "judge the order where tenants come and go"},
		&cli.IntFlag{
			Name: "dispatches", Value: 3000, Usage: "`NUMBER` of dispatches in each scenario of --churn",
			Validator: cmdline.AtLeast(1),
		},
		&cli.Uint64Flag{Name: "seed", DefaultText: "a random one", Usage: "`NUMBER` that decides who arrives in --churn"},
	}
	return append(append(append(own, stressFlags()...), churn...), sliceFlags(10, 3)...)
}

// dispatchOptions returns the options that the flags name.
func dispatchOptions(c *cli.Command) bench.DispatchOptions {
	return bench.DispatchOptions{
		Load: loadOf(c), Path: c.String("path"), Tenants: c.Int("tenants"), Zipf: c.Bool("zipf"),
		Partitions: c.Int("partitions"), Producers: c.Int("producers"), Hogs: c.Int("hogs"), Limits: c.Bool("limits"),
		Baseline: c.String("baseline"),
	}
}

func (b benchmarks) dispatch() *cli.Command {
	return &cli.Command{
		Name:        "dispatch",
		Usage:       "jobs per second that workers take and acknowledge, and how fairly",
		Description: dispatchHelp,
		Flags:       b.flags(dispatchFlags()...),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			if !c.Bool("churn") {
				return bench.Dispatch(ctx, env, dispatchOptions(c))
			}
			seed := c.Uint64("seed")
			if !c.IsSet("seed") {
				seed = rand.Uint64N(1_000_000)
			}
			return bench.Churn(ctx, env, bench.ChurnOptions{Dispatches: c.Int("dispatches"), ArgsBytes: c.Int("args-bytes"), Seed: seed})
		}, func(c *cli.Command) error { return dispatchOptions(c).Check() }),
	}
}

const enqueueHelp = `PRODUCERS producers, each on a connection of its own as a role under row security, each call one transaction,
prepared statements.

  --path sql   by ojs.enqueue (BATCH above 1: ojs.enqueue_bulk, and ojs.enqueue_many), and by plain insert into the view ojs.jobs
               (several rows in one statement)
  --path http  by POST /ojs/v1/jobs (or /jobs/batch) to a server in a process of its own, on the loopback interface

The baseline is a bare insert of the same columns into a table with the columns of ojs.job and the same primary key, and nothing else:
no trigger, no check, no second index, no row security; its ids are gen_random_uuid(). Every way returns the ids. A server's clock runs
all the time, and rolls up what the producers write.

With --limits the TENANTS have limits, a depth and a rate far above what is reached, and the baseline is the same way, function or HTTP,
in a deployment without limits: ratio says what limits cost, cpu_us_per_job and baseline_cpu_us_per_job, too.

  ratio               jobs per second, the function's (with --path http: the server's) to the baseline's: the median of the slices
  insert_ratio        the same for the plain insert
  json_ratio          the same for ojs.enqueue_many, which takes any jobs as JSON
  http_ceiling_ratio  with --path http: jobs per second to those of the same server and clients with the database cut out
  cpu_us_per_job      microseconds of a processor per job, of what ratio is about: {postgresql, server, client}, the median of the slices.
                      postgresql: all its processes, those that ended included; server: the Go server, with --path sql its clock; client:
                      the producers. baseline_cpu_us_per_job: of the baseline, which has no server
  cpu_ratio           that of PostgreSQL, ours to the baseline's; insert_cpu_ratio, json_cpu_ratio; null but on Linux with a PostgreSQL
                      of its own
  auth_cpu_ratio      with --path http --auth api-key: that of the server, of one that asks for API keys to one that does not, in the same
                      run; auth_ratio: jobs per second; auth_cpu_us_per_job`

func (b benchmarks) enqueue() *cli.Command {
	own := []cli.Flag{
		&cli.StringFlag{Name: "path", Value: "sql", Usage: "`WAY` in: sql or http", Validator: cmdline.OneOf("sql", "http")},
		&cli.StringFlag{
			Name: "auth", Value: "none", Usage: "`HOW` callers of HTTP are known: none, or api-key as well",
			Validator: cmdline.OneOf("none", "api-key"),
		},
		&cli.IntFlag{Name: "producers", Value: 16, Usage: "`NUMBER` of producers at once", Validator: cmdline.AtLeast(1)},
		&cli.IntFlag{Name: "batch", Value: 1, Usage: "`NUMBER` of jobs per transaction, at most 1000", Validator: cmdline.Between(1, 1000)},
		&cli.IntFlag{
			Name: "tenants", Value: 3, Usage: "`NUMBER` of tenants, one per transaction; 1 with --limits",
			Validator: cmdline.AtLeast(1),
		},
		&cli.BoolFlag{Name: "limits", Usage: "tenants with limits to the same without"},
	}
	return &cli.Command{
		Name:        "enqueue",
		Usage:       "jobs per second that producers commit",
		Description: enqueueHelp,
		Flags:       b.flags(append(append(own, stressFlags()...), sliceFlags(10, 2)...)...),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			opts := bench.EnqueueOptions{
				Load: loadOf(c), Producers: c.Int("producers"), Tenants: c.Int("tenants"),
				Path: c.String("path"), Hogs: c.Int("hogs"), Keys: c.String("auth") == "api-key", Limits: c.Bool("limits"),
			}
			if opts.Limits && !c.IsSet("tenants") {
				opts.Tenants = 1
			}
			return bench.Enqueue(ctx, env, opts)
		}, func(c *cli.Command) error {
			if c.String("auth") == "api-key" && c.String("path") != "http" {
				return errors.New("--auth api-key is about HTTP, with --path http")
			}
			return nil
		}),
	}
}

func (b benchmarks) scale() *cli.Command {
	return &cli.Command{
		Name:  "scale",
		Usage: "whether a fetch takes longer when there are more jobs, or more tenants",
		Description: `Fetches of 1 and of 10 jobs from two databases of one server in turns, a large one and a small one. Whole
calls are timed, with synchronous_commit off in these sessions, because the flush of the log takes as long in both and would hide a
difference. Calls are ojs.fetch, and ojs.fetch_many, which servers use. Each figure is the p50 of the large one to that of the small
one, the worst of the calls and counts. With DATABASE_URL the second database is made beside the given one, and dropped at the end.

  jobs_ratio          JOBS jobs to FEW-JOBS, all available, of FEW-TENANTS tenants
  tenants_ratio       TENANTS tenants with work to FEW-TENANTS, with as many jobs in sum
  idle_tenants_ratio  TENANTS tenants that have had work, FEW-TENANTS of which have some now, to those alone
  disk_gib            size of the largest of the databases; by default about 6 GiB, and as much again for the log while it is loaded`,
		Flags: b.flags(
			&cli.IntFlag{Name: "jobs", Value: 10_000_000, Usage: "`NUMBER` of jobs in the large database", Validator: cmdline.AtLeast(100)},
			&cli.IntFlag{Name: "few-jobs", Value: 10_000, Usage: "`NUMBER` of jobs in the small database", Validator: cmdline.AtLeast(100)},
			&cli.IntFlag{
				Name: "tenants", Value: 100_000, Usage: "`NUMBER` of tenants in the large database",
				Validator: cmdline.AtLeast(1),
			},
			&cli.IntFlag{Name: "few-tenants", Value: 10, Usage: "`NUMBER` of tenants in the small database", Validator: cmdline.AtLeast(1)},
			&cli.IntFlag{Name: "samples", Value: 200, Usage: "`NUMBER` of fetches of each kind", Validator: cmdline.AtLeast(1)},
			argsFlag(),
		),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			return bench.Scale(ctx, env, scaleOptions(c))
		}, func(c *cli.Command) error { return scaleOptions(c).Check() }),
	}
}

// scaleOptions returns the options that the flags name.
func scaleOptions(c *cli.Command) bench.ScaleOptions {
	return bench.ScaleOptions{
		Jobs: c.Int("jobs"), FewJobs: c.Int("few-jobs"), Tenants: c.Int("tenants"), FewTenants: c.Int("few-tenants"),
		Samples: c.Int("samples"), ArgsBytes: c.Int("args-bytes"),
	}
}

func (b benchmarks) pinned() *cli.Command {
	return &cli.Command{
		Name:  "pinned",
		Usage: "whether throughput decays while somebody holds a transaction open",
		Description: `WORKERS workers take and acknowledge BATCH jobs at a time, in the server's process, while PRODUCERS producers
enqueue, a hundred jobs to a transaction, and rest while BACKLOG jobs wait. Meanwhile another session holds a repeatable-read
transaction that began before, so that no dead row version can be removed. Three runs of SECONDS each, from an empty database: ours,
ours without that transaction, and a baseline that 'ojs-bench dispatch --help' describes, with that transaction.

  last_over_first           jobs per second in the last minute to those in the second minute; in runs of less than five minutes,
                            fifths for minutes
  control                   the same without the transaction
  baseline_last_over_first  the same of the baseline`,
		Flags: b.flags(crowdFlags(
			&cli.FloatFlag{Name: "seconds", Value: 300, Usage: "`SECONDS` of each of the three runs", Validator: cmdline.AtLeast(0.001)},
			&cli.IntFlag{Name: "backlog", Value: 20_000, Usage: "`NUMBER` of jobs that wait at any time", Validator: cmdline.AtLeast(100)},
			baselineFlag(),
			argsFlag(),
		)...),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			return bench.Pinned(ctx, env, bench.PinnedOptions{
				Load: loadOf(c), Producers: c.Int("producers"), Tenants: c.Int("tenants"), Backlog: c.Int("backlog"),
				Baseline: c.String("baseline"),
			})
		}),
	}
}

func (b benchmarks) neighbour() *cli.Command {
	return &cli.Command{
		Name:  "neighbour",
		Usage: "what a tenant of few jobs suffers from one of a million",
		Description: `A large tenant holds BACKLOG jobs in a queue and adds FLOOD per second. A small one commits RATE jobs per
second, one to a transaction, into the same queue, and at the same time as many into another queue, which is the control: the same
flood, the same machine, the same moments. WORKERS workers take BATCH jobs at a time from both queues, in the server's process;
together CONSUME jobs per second, which keeps the backlog where it is, or with --consume 0 as fast as they can. The time of a job is
taken from before its COMMIT is sent to when a worker has it.

  p99_ratio          the p99 of these times beside the flood to that in the other queue
  p99_difference_ms  their difference`,
		Flags: b.flags(
			&cli.IntFlag{
				Name: "samples", Value: 520, Usage: "`NUMBER` of jobs of the small tenant, in each queue",
				Validator: cmdline.AtLeast(1),
			},
			&cli.FloatFlag{Name: "rate", Value: 2, Usage: "`JOBS` per second of the small tenant", Validator: cmdline.AtLeast(0.001)},
			&cli.IntFlag{
				Name: "backlog", Value: 1_000_000,
				Usage: "`NUMBER` of jobs that the large tenant holds at first", Validator: cmdline.AtLeast(0),
			},
			&cli.FloatFlag{Name: "flood", Value: 5000, Usage: "`JOBS` per second that it adds"},
			&cli.FloatFlag{Name: "consume", Value: 5000, Usage: "`JOBS` per second that the workers take; 0: as many as they can"},
			&cli.IntFlag{Name: "workers", Value: 16, Usage: "`NUMBER` of workers at once", Validator: cmdline.AtLeast(1)},
			&cli.IntFlag{Name: "batch", Value: 10, Usage: "`NUMBER` of jobs asked for at once", Validator: cmdline.Between(1, 1000)},
			argsFlag(),
		),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			return bench.Neighbour(ctx, env, bench.NeighbourOptions{
				Workers: c.Int("workers"), Batch: c.Int("batch"), ArgsBytes: c.Int("args-bytes"), Backlog: c.Int("backlog"),
				Flood: c.Float("flood"), Consume: c.Float("consume"), Rate: c.Float("rate"), Samples: c.Int("samples"),
			})
		}),
	}
}

func (b benchmarks) wakeup() *cli.Command {
	return &cli.Command{
		Name:  "wakeup",
		Usage: "from a commit to the worker who waits, and what waiting costs",
		Description: `A server in this process, on the loopback interface, and one worker whose FETCH waits. After a pause of 4 to
24 ms a job is committed on another connection; the time is taken from the moment before COMMIT is sent to the moment when the
worker has read the answer, so the flush of that commit and of the dispatch are in it. Then the job is acknowledged, and the next
one follows. There is no baseline.

  p50_ms, p99_ms           of these times; commit_p50_ms is what the COMMIT alone took
  idle_queries_per_second  transactions that the database counts while WORKERS requests wait and nothing happens, for IDLE-SECONDS;
                           none of the requests begins or ends meanwhile, a longest wait being 60 s
  idle_cpu_percent         of one processor meanwhile, this process and PostgreSQL together; on Linux and with a PostgreSQL of its
                           own, else null`,
		Flags: b.flags(
			&cli.IntFlag{Name: "samples", Value: 1000, Usage: "`NUMBER` of jobs", Validator: cmdline.AtLeast(1)},
			&cli.IntFlag{Name: "workers", Value: 100, Usage: "`NUMBER` of workers who wait for nothing", Validator: cmdline.AtLeast(1)},
			&cli.FloatFlag{
				Name: "idle-seconds", Value: 30,
				Usage: "`SECONDS` for which they are watched, at most 40", Validator: cmdline.AtLeast(0.001),
			},
			argsFlag(),
		),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			return bench.Wakeup(ctx, env, bench.WakeupOptions{
				Samples: c.Int("samples"), Workers: c.Int("workers"),
				IdleSeconds: min(40, c.Float("idle-seconds")), ArgsBytes: c.Int("args-bytes"),
			})
		}),
	}
}

func (b benchmarks) light() *cli.Command {
	return &cli.Command{
		Name:  "light",
		Usage: "what a job costs, and how long it is on its way, where workers wait most of the time",
		Description: `A server in a process of its own, on the loopback interface, with its clock. RATE jobs per second are enqueued
one by one, by one producer over HTTP and at random times; WORKERS workers wait for them, ask for one job, acknowledge it, and ask
again. Nothing is shared between jobs: each pays for its own statements and commits, and for what the clock does meanwhile. There is
no baseline.

  cpu_us_per_job  microseconds of a processor per job: {postgresql, server, client}, as in 'ojs-bench dispatch'; null but on Linux with a
                  PostgreSQL of its own
  p50_ms, p99_ms  from before the request that enqueues is sent to when a worker has read the answer that holds the job`,
		Flags: b.flags(
			&cli.FloatFlag{Name: "rate", Value: 50, Usage: "`JOBS` per second", Validator: cmdline.AtLeast(0.001)},
			&cli.IntFlag{Name: "workers", Value: 16, Usage: "`NUMBER` of workers that wait", Validator: cmdline.AtLeast(1)},
			&cli.FloatFlag{Name: "seconds", Value: 60, Usage: "`SECONDS` of the whole", Validator: cmdline.AtLeast(0.001)},
			argsFlag(),
		),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			return bench.Light(ctx, env, bench.LightOptions{
				Rate: c.Float("rate"), Workers: c.Int("workers"), Seconds: c.Float("seconds"), ArgsBytes: c.Int("args-bytes"),
			})
		}),
	}
}

func (b benchmarks) mixed() *cli.Command {
	return &cli.Command{
		Name:  "mixed",
		Usage: "whether throughput decays, or the database grows, while everything happens to jobs",
		Description: `PRODUCERS producers enqueue, a hundred jobs to a transaction, and rest while OPEN jobs have not ended. AHEAD
percent of the jobs are scheduled up to ten seconds ahead, and CANCEL percent are cancelled after the next transaction. WORKERS
workers take BATCH jobs at a time, in the server's process, under leases of five seconds: of the attempts FAIL percent fail and are
retried by the default policy, and for LOST percent nobody is heard of again, so that the lease has to end. Finished jobs stay for
RETENTION seconds, and the journal for a minute; what a server's clock and upkeep do is done meanwhile.

  throughput_ratio        jobs completed in the last minute to those in the second; in runs of less than five minutes, fifths for minutes
  cpu_ratio               the same of what this process and PostgreSQL compute per completed job: it says what the work costs, where
                          the machine has other things to do; on Linux and with a PostgreSQL of its own, else null
  size_ratio              bytes of the database per job in it, finished ones included, in the last minute to the third: means of six
                          looks a minute
  bytes_per_retained_job  in the last minute; minutes holds all figures of each minute, and in which tables the bytes are`,
		Flags: b.flags(crowdFlags(
			&cli.FloatFlag{Name: "seconds", Value: 600, Usage: "`SECONDS` of the whole", Validator: cmdline.AtLeast(0.001)},
			&cli.IntFlag{
				Name: "open", Value: 20_000, Usage: "`NUMBER` of jobs that have not ended at any time",
				Validator: cmdline.AtLeast(100),
			},
			&cli.FloatFlag{Name: "fail", Value: 20, Usage: "`PERCENT` of attempts that fail", Validator: cmdline.Between(0.0, 100)},
			&cli.FloatFlag{Name: "ahead", Value: 10, Usage: "`PERCENT` of jobs scheduled ahead", Validator: cmdline.Between(0.0, 100)},
			&cli.FloatFlag{Name: "cancel", Value: 5, Usage: "`PERCENT` of jobs cancelled", Validator: cmdline.Between(0.0, 100)},
			&cli.FloatFlag{
				Name: "lost", Value: 2, Usage: "`PERCENT` of attempts whose worker is lost",
				Validator: cmdline.Between(0.0, 100),
			},
			&cli.FloatFlag{
				Name: "retention", Value: 60, Usage: "`SECONDS` that finished jobs stay, at least 10",
				Validator: cmdline.AtLeast(10.0),
			},
			argsFlag(),
		)...),
		Action: b.run(func(ctx context.Context, env *bench.Env, c *cli.Command) (any, error) {
			return bench.Mixed(ctx, env, bench.MixedOptions{
				Load: loadOf(c), Producers: c.Int("producers"), Tenants: c.Int("tenants"), Open: c.Int("open"),
				Fail: c.Float("fail"), Ahead: c.Float("ahead"), Cancel: c.Float("cancel"), Lost: c.Float("lost"),
				Retention: c.Float("retention"),
			})
		}),
	}
}

// loadOf returns the parameters that most benchmarks share.
func loadOf(c *cli.Command) bench.Load {
	return bench.Load{
		Workers: c.Int("workers"), Batch: c.Int("batch"), ArgsBytes: c.Int("args-bytes"),
		Slices: c.Int("slices"), Seconds: c.Float("seconds"),
	}
}

// printTable writes the fields of the JSON result, one to a line, without long lists.
func printTable(w io.Writer, result any) error {
	raw, err := json.Marshal(result)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		name := strings.ReplaceAll(fmt.Sprint(key), "_", " ")
		// Lists and objects are left out, but for these.
		switch {
		case string(value) == "null":
			fmt.Fprintf(out, "%s\tnot known\n", name)
		case strings.HasSuffix(name, "cpu us per job"):
			var cpu bench.CPU
			if err := json.Unmarshal(value, &cpu); err != nil {
				return err
			}
			fmt.Fprintf(out, "%s\t%s\n", name, cpu)
		case name == "scenarios":
			var scenarios []bench.ChurnScenario
			if err := json.Unmarshal(value, &scenarios); err != nil {
				return err
			}
			for _, s := range scenarios {
				fmt.Fprintf(out, "%s\tlag %v of %v, of the small ones %v of %v\n", s.Name, s.MaxLag, s.Bound, s.SmallMaxLag, s.SmallBound)
			}
		case strings.HasSuffix(name, "interval"):
			var interval bench.Interval
			if err := json.Unmarshal(value, &interval); err != nil {
				return err
			}
			fmt.Fprintf(out, "%s\t%v to %v (%.1f %%)\n", name, interval.Low, interval.High, 100*interval.Confidence)
		case value[0] != '[' && value[0] != '{':
			fmt.Fprintf(out, "%s\t%s\n", name, strings.Trim(string(value), `"`))
		}
	}
	return out.Flush()
}
